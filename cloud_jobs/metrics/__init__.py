"""What a job counts while it runs, for Prometheus: served by its own process, on a port of the settings `[metrics]`.

What the lake says of itself is in `cloud_jobs.status.centre_metrics`.
"""
