"""MQTT brokers: processes, configuration, access lists, certificates and credentials."""
