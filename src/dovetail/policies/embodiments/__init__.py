"""One policy for several kinds of arms: the canonical space they share, and the policy that works in it."""
