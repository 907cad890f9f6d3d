"""The aggregators: how the tours' models become the next global model."""
