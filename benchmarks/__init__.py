"""Programs that measure heddle against a floor or a peer in the same run; `docs/performance.md` holds the figures."""
