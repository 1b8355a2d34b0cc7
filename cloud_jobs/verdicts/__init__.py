"""What the centre says of each alert: it happened so, otherwise, or not; and what no region said. No Spark."""
