"""The register: what was closed, what was issued, and what is posted to each invoice; no period is issued twice."""
