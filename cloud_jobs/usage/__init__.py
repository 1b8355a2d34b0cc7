"""What each device used in each hour and zone: recomputed for the hours that new records touch, and for no others."""
