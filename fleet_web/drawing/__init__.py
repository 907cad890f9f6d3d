"""Pictures: tours and curves as SVG."""
