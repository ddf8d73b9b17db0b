"""The /v2 resources of evaluation: thin layers over objects and calls, so that what SDKs write is read here."""
