"""`python -m waybill`."""

from waybill.commands import waybill

if __name__ == "__main__":
    waybill()
