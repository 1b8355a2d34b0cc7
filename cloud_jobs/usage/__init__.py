"""Usage of each device by hour and zone, recomputed only for hours with new records or changed fences."""
