"""What each device used in each hour and zone: recomputed for the hours that new records or changed fences touch, and
for no others."""
