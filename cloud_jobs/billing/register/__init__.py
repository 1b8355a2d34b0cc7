"""The register of closings, issued documents and posted charges; no period is issued twice."""
