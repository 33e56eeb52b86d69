"""HTTP/1.1 on both sides: connections, heads, pooled upstreams."""
