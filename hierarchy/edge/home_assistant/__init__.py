"""The devices of a site as Home Assistant finds them."""
