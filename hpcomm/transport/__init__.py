"""What carries out calls. A transport has two methods: run(call) now, start(call) -> Request."""
