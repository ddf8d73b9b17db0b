"""Who may use how much: limits of projects and keys, and the accounts of their completions."""
