"""Brokers and who may connect to them: processes, configuration, access lists, certificates, credentials."""
