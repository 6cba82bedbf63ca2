"""What programs may call: the endpoints, by gradio_client, MCP and plain JSON."""
