"""How targets reach Kubernetes: KEDA's external scaler, the external metrics API, direct writes of `scale`."""
