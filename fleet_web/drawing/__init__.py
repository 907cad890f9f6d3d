"""Tours and curves as SVG images."""
