/* limits.h: every bound on what files and clients may ask of us, in one place. */
#ifndef EA_BASE_LIMITS_H
#define EA_BASE_LIMITS_H

/* GGUF files. Real files have < 100 keys and < 2,000 tensors; vocabularies reach 262,144 tokens. */
#define EA_MAX_GGUF_KEYS 65536
#define EA_MAX_GGUF_TENSORS 65536
#define EA_MAX_GGUF_NAME 63   /* bytes of a tensor name, as in the format's reference reader */
#define EA_MAX_GGUF_KEY 65535 /* bytes of a key, by the specification */
#define EA_MAX_GGUF_ALIGNMENT (1u << 20)
#define EA_MAX_GGUF_SPLITS 1024
#define EA_MAX_TENSOR_DIMS 4

/* Models. */
#define EA_MAX_LAYERS 512
#define EA_MAX_VOCAB (1 << 22)
#define EA_MAX_EMBD (1 << 17)
#define EA_MAX_HEADS 1024
#define EA_MAX_HEAD_DIM 512
#define EA_MAX_TEMPLATE_BYTES (128 * 1024)

/* Engine. */
#define EA_MAX_PARALLEL 256
#define EA_MAX_CTX (1 << 24)
#define EA_MAX_BATCH 4096
#define EA_MAX_THREADS 256
#define EA_MAX_STOPS 64
#define EA_MAX_STOP_BYTES 4096
#define EA_MAX_LOGIT_BIAS 65536
#define EA_MAX_TOP_LOGPROBS 20

/* Server. */
#define EA_MAX_BODY_BYTES (64u << 20)
#define EA_MAX_CHOICES 64
#define EA_MAX_CONNECTIONS 2048

#endif
