-- Events at fences and gates that are in force: the highest revision of each id, unless it is retracted.
WITH revisions AS (
  SELECT *, row_number() OVER (PARTITION BY id ORDER BY revision DESC) AS place_in_line FROM geofence_events
)
SELECT tenant, device, time, kind, place, value, CAST(epoch AS STRING) AS epoch, seq, id
FROM revisions
WHERE place_in_line = 1 AND NOT retracted
ORDER BY tenant, device, time, kind, place
