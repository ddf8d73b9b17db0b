"""Jobs at work: leased, done by training processes, published, judged; old steps let go."""
