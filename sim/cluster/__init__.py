"""The simulation on SimPy's clock: arrivals, clients, gateway, routers and replicas."""
