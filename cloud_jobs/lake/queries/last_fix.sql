-- The newest position of each vehicle. Positions of clocks that are far off have no device_date and do not count.
WITH newest AS (
  SELECT *, row_number() OVER (PARTITION BY tenant, device ORDER BY device_time DESC, epoch DESC, seq DESC) AS place_in_line
  FROM records
  WHERE kind = 'position' AND device_date IS NOT NULL
)
SELECT tenant, device, device_time, latitude, longitude, speed_mps, mapping, CAST(epoch AS STRING) AS epoch, seq
FROM newest
WHERE place_in_line = 1
ORDER BY tenant, device
