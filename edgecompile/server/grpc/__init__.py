"""The Open Inference Protocol over gRPC; needs the extra ``grpc``."""
