"""The web interface: plain files for the browser, and the few read models that they ask for."""
