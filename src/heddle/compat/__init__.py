"""What clients need beside the interface: GraphQL boot queries and the addresses that people open."""
