"""What is learned and how: plain functions and objects, fed with bytes and offsets. No I/O, no asyncio, no clock."""
