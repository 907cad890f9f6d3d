"""How the tours' models become the next global model."""
