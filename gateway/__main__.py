"""`python -m gateway`."""

from gateway.cli import app

if __name__ == "__main__":
    app(prog_name="fleet-gateway")
