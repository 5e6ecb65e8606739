"""The engine that walks every running request in every pass, for what cannot be leapt over."""
