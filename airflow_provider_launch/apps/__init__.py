"""Programs that builtin components run inside replicas."""
