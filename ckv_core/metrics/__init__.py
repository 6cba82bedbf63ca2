"""What eviction did: to the outputs, to the text, to the memory."""
