"""Autoscalers: from what a pool shows to the number of replicas it should have."""
