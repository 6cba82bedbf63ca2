"""Our own components: gr.HTML subclasses with a static template and one script each."""
