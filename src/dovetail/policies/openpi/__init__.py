"""openpi's protocol: the client of its policy servers, its arrays in msgpack, and its observation keys. No torch."""
