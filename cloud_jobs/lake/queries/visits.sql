-- Visits of vehicles to fences. left_at and seconds are null while the vehicle is inside.
WITH revisions AS (
  SELECT *, row_number() OVER (PARTITION BY id ORDER BY revision DESC) AS place_in_line FROM geofence_events
), borders AS (
  SELECT tenant, device, place, kind, time,
    lead(kind) OVER (PARTITION BY tenant, device, place ORDER BY time, epoch, seq) AS next_kind,
    lead(time) OVER (PARTITION BY tenant, device, place ORDER BY time, epoch, seq) AS next_time,
    lead(value) OVER (PARTITION BY tenant, device, place ORDER BY time, epoch, seq) AS next_value
  FROM revisions
  WHERE place_in_line = 1 AND NOT retracted AND kind IN ('enter', 'exit')
)
SELECT tenant, device, place, time AS entered_at,
  CASE WHEN next_kind = 'exit' THEN next_time END AS left_at,
  CASE WHEN next_kind = 'exit' THEN next_value END AS seconds
FROM borders
WHERE kind = 'enter'
ORDER BY tenant, device, entered_at, place
