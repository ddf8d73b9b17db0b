"""The Responses interface: items in, items and events out, stored responses and conversations."""
