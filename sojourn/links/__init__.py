"""How a node reaches a broker: over MQTT, or in memory under a virtual clock."""
