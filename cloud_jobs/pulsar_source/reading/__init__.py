"""In Spark's Python workers: from a planned range of a topic partition to Arrow batches, with nothing left out."""
