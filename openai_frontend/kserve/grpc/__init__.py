"""KServe's protocol over gRPC: adapters of the services that its HTTP routes use too."""
