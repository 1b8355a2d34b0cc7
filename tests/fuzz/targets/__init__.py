"""The parsers that are fuzzed: their names, and the module whose `TARGETS` has each."""

HOMES = {
    name: module
    for module, names in {
        "files": "contracts_toml fences_geojson fixes_csv pushed_settings settings_toml state_files",
        "identity": "certificate_request devices_toml enrolment operators_toml registry_entry revocation_list"
        " sealed_batch signed_push token_files",
        "mappings": "mapped_message mapping_samples nmea_sentences",
        "pulsar": "admin_answer reference_message status_request",
        "wire": "ack agent_control batch gateway mqtt_packets mqtt_publish strict_json vehicle_message",
    }.items()
    for name in names.split()
}
"""Kept apart from the targets: what is fuzzed is imported by who counts its branches."""
