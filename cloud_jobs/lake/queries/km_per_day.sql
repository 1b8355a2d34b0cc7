-- Kilometres of each vehicle on each UTC day, in all and inside fences.
WITH in_force AS (
  SELECT *, row_number() OVER (PARTITION BY tenant, device, hour, zone ORDER BY commit_number DESC) AS place_in_line
  FROM usage
), metered AS (
  SELECT tenant, device, day, zone, distance_mm[1] + distance_mm[2] + distance_mm[3] + distance_mm[4] AS mm
  FROM in_force WHERE place_in_line = 1
)
SELECT tenant, device, day,
  CAST(sum(mm) AS DOUBLE) / 1000000 AS km,
  CAST(sum(CASE WHEN zone = '' THEN 0 ELSE mm END) AS DOUBLE) / 1000000 AS km_in_fences
FROM metered
GROUP BY tenant, device, day
ORDER BY tenant, device, day
