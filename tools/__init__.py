"""Scripts for who works on this repository; none of it is installed."""
