"""Why a charge is what it is: from an invoice's line to the hours that were rated, and to the records of each hour."""

from cloud_jobs.explain.picture import Border, Stretch, track_picture

__all__ = ["Border", "Stretch", "track_picture"]
