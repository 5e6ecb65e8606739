"""The engine: scheduling, KV blocks and prefix cache of one replica, and its records. It has no clock, and is compiled in wheels."""
