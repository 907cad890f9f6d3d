"""A MobileNet fine-tuned on photographs by domain: `python -m examples.office`."""
