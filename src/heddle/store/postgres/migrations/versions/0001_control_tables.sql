CREATE TABLE adapter_names (
    entity TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    latest BIGINT NOT NULL,
    PRIMARY KEY (entity, project, name)
);

CREATE TABLE adapters (
    entity TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    base_model TEXT COLLATE "C" NOT NULL,
    folder TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (entity, project, name, step),
    UNIQUE (folder)
);

CREATE TABLE agent_spans (
    seq BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    trace_id TEXT COLLATE "C" NOT NULL,
    span_id TEXT COLLATE "C" NOT NULL,
    parent_span_id TEXT COLLATE "C" NOT NULL,
    span_name TEXT COLLATE "C" NOT NULL,
    span_kind TEXT COLLATE "C" NOT NULL,
    status_code TEXT COLLATE "C" NOT NULL,
    operation_name TEXT COLLATE "C" NOT NULL,
    provider_name TEXT COLLATE "C" NOT NULL,
    agent_name TEXT COLLATE "C" NOT NULL,
    agent_version TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    request_model TEXT COLLATE "C" NOT NULL,
    response_model TEXT COLLATE "C" NOT NULL,
    conversation_id TEXT COLLATE "C" NOT NULL,
    conversation_name TEXT COLLATE "C" NOT NULL,
    tool_name TEXT COLLATE "C" NOT NULL,
    error_type TEXT COLLATE "C" NOT NULL,
    eval_predict_and_score_call_id TEXT COLLATE "C" NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    input_tokens BIGINT,
    output_tokens BIGINT,
    reasoning_tokens BIGINT,
    cache_creation_input_tokens BIGINT,
    cache_read_input_tokens BIGINT,
    more TEXT COLLATE "C",
    custom TEXT COLLATE "C",
    own BIGINT NOT NULL,
    is_counted BIGINT NOT NULL,
    hidden BIGINT DEFAULT 0 NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT agent_spans_by_id UNIQUE (project, trace_id, span_id)
);

CREATE INDEX agent_spans_by_agent ON agent_spans (project, agent_name, agent_version, started_at) WHERE hidden = 0;

CREATE INDEX agent_spans_by_conversation ON agent_spans (project, conversation_id, started_at, trace_id) WHERE hidden = 0;

CREATE INDEX agent_spans_by_evaluated_call ON agent_spans (project, eval_predict_and_score_call_id) WHERE eval_predict_and_score_call_id != '';

CREATE INDEX agent_spans_by_time ON agent_spans (project, started_at) WHERE hidden = 0;

CREATE TABLE agent_traces (
    project TEXT COLLATE "C" NOT NULL,
    trace_id TEXT COLLATE "C" NOT NULL,
    agent_name TEXT COLLATE "C" NOT NULL,
    agent_version TEXT COLLATE "C" NOT NULL,
    agent_id TEXT COLLATE "C" NOT NULL,
    agent_at BIGINT,
    conversation_id TEXT COLLATE "C" NOT NULL,
    conversation_at BIGINT,
    conversation_name TEXT COLLATE "C" NOT NULL,
    has_model BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (project, trace_id)
);

CREATE TABLE alert_deliveries (
    id TEXT COLLATE "C" NOT NULL,
    alert_id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    event TEXT COLLATE "C" NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    attempts BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    error TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    lease_until BIGINT,
    PRIMARY KEY (id)
);

CREATE INDEX alert_deliveries_alert ON alert_deliveries (project, alert_id, created_at);

CREATE INDEX alert_deliveries_due ON alert_deliveries (state, next_at);

CREATE TABLE alert_rules (
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    is_enabled BIGINT NOT NULL,
    rule TEXT COLLATE "C" NOT NULL,
    secret TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    value FLOAT,
    problem TEXT COLLATE "C",
    checked_at BIGINT,
    changed_at BIGINT,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX alert_rules_project ON alert_rules (project);

CREATE TABLE annotation_progress (
    item_id TEXT COLLATE "C" NOT NULL,
    annotator TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (item_id, annotator)
);

CREATE TABLE annotation_queue_items (
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    queue_id TEXT COLLATE "C" NOT NULL,
    call_id TEXT COLLATE "C" NOT NULL,
    call_started_at BIGINT NOT NULL,
    call_ended_at BIGINT,
    call_op_name TEXT COLLATE "C" NOT NULL,
    call_trace_id TEXT COLLATE "C" NOT NULL,
    display_fields TEXT COLLATE "C" NOT NULL,
    added_by TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    annotation_state TEXT COLLATE "C" NOT NULL,
    annotator_user_id TEXT COLLATE "C" NOT NULL,
    done BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT annotation_queue_items_once UNIQUE (queue_id, call_id)
);

CREATE INDEX annotation_queue_items_by_call ON annotation_queue_items (project, call_id);

CREATE TABLE annotation_queues (
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    description TEXT COLLATE "C" NOT NULL,
    scorer_refs TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT,
    PRIMARY KEY (id)
);

CREATE INDEX annotation_queues_by_time ON annotation_queues (project, created_at);

CREATE TABLE api_keys (
    id TEXT COLLATE "C" NOT NULL,
    hash TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    scopes TEXT COLLATE "C" NOT NULL,
    entity TEXT COLLATE "C",
    project TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    last_used_at BIGINT,
    revoked_at BIGINT,
    PRIMARY KEY (id),
    UNIQUE (hash)
);

CREATE TABLE audit_log (
    number BIGSERIAL NOT NULL,
    at BIGINT NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    action TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C",
    details TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (number)
);

CREATE INDEX ix_audit_log_at ON audit_log (at);

CREATE INDEX ix_audit_log_project ON audit_log (project);

CREATE TABLE call_halves (
    project TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    half BYTEA NOT NULL,
    is_end BIGINT NOT NULL,
    started_at BIGINT,
    revision BIGINT NOT NULL,
    inserted_at BIGINT NOT NULL,
    has_files BIGINT NOT NULL,
    PRIMARY KEY (project, id)
);

CREATE INDEX call_halves_by_start ON call_halves (project, started_at);

CREATE INDEX ix_call_halves_inserted_at ON call_halves (inserted_at);

CREATE TABLE changes (
    name TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE costs (
    seq BIGSERIAL NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    llm_id TEXT COLLATE "C" NOT NULL,
    provider_id TEXT COLLATE "C" NOT NULL,
    effective_date BIGINT NOT NULL,
    prompt_token_cost FLOAT NOT NULL,
    completion_token_cost FLOAT NOT NULL,
    cache_read_input_token_cost FLOAT NOT NULL,
    cache_creation_input_token_cost FLOAT NOT NULL,
    prompt_token_cost_unit TEXT COLLATE "C" NOT NULL,
    completion_token_cost_unit TEXT COLLATE "C" NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT costs_by_id UNIQUE (project, id)
);

CREATE INDEX costs_by_model ON costs (project, llm_id);

CREATE TABLE dataset_sources (
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    dataset_object_id TEXT COLLATE "C" NOT NULL,
    dataset_digest TEXT COLLATE "C" NOT NULL,
    row_digest TEXT COLLATE "C" NOT NULL,
    source_kind TEXT COLLATE "C" NOT NULL,
    source_id TEXT COLLATE "C" NOT NULL,
    source_trace_id TEXT COLLATE "C" NOT NULL,
    link_metadata TEXT COLLATE "C",
    added_by TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT,
    PRIMARY KEY (id),
    CONSTRAINT dataset_sources_identity UNIQUE (project, dataset_object_id, row_digest, source_kind, source_id, source_trace_id)
);

CREATE INDEX dataset_sources_by_source ON dataset_sources (project, source_id);

CREATE TABLE ended_calls (
    seq BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    call TEXT COLLATE "C" NOT NULL,
    is_taken BIGINT NOT NULL,
    PRIMARY KEY (seq)
);

CREATE INDEX ended_calls_by_project ON ended_calls (project, seq);

CREATE TABLE eval_jobs (
    number BIGSERIAL NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    project_id TEXT COLLATE "C" NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    caller TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    attempts BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    cancel_asked BIGINT NOT NULL,
    progress TEXT COLLATE "C" NOT NULL,
    result TEXT COLLATE "C",
    error TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    ended_at BIGINT,
    lease_owner TEXT COLLATE "C",
    lease_until BIGINT,
    PRIMARY KEY (number),
    UNIQUE (id)
);

CREATE INDEX eval_jobs_project ON eval_jobs (project_id, number);

CREATE INDEX eval_jobs_state ON eval_jobs (state, number);

CREATE TABLE feedback (
    seq BIGSERIAL NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    weave_ref TEXT COLLATE "C" NOT NULL,
    feedback_type TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    wb_user_id TEXT COLLATE "C" NOT NULL,
    creator TEXT COLLATE "C",
    annotation_ref TEXT COLLATE "C",
    runnable_ref TEXT COLLATE "C",
    call_ref TEXT COLLATE "C",
    trigger_ref TEXT COLLATE "C",
    queue_id TEXT COLLATE "C",
    scorer_tags TEXT COLLATE "C" NOT NULL,
    scorer_tag_reasons TEXT COLLATE "C" NOT NULL,
    scorer_tag_confidences TEXT COLLATE "C" NOT NULL,
    scorer_ratings TEXT COLLATE "C" NOT NULL,
    scorer_rating_reasons TEXT COLLATE "C" NOT NULL,
    scorer_rating_confidences TEXT COLLATE "C" NOT NULL,
    span_agent_name TEXT COLLATE "C" NOT NULL,
    span_agent_version TEXT COLLATE "C" NOT NULL,
    span_status_code TEXT COLLATE "C" NOT NULL,
    span_trace_id TEXT COLLATE "C" NOT NULL,
    span_conversation_id TEXT COLLATE "C" NOT NULL,
    scorer_trace_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (seq),
    CONSTRAINT feedback_by_id UNIQUE (project, id)
);

CREATE INDEX feedback_by_target ON feedback (project, weave_ref);

CREATE INDEX feedback_by_time ON feedback (project, created_at);

CREATE TABLE files (
    project TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    blob TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (project, digest)
);

CREATE INDEX files_by_blob ON files (blob);

CREATE TABLE heartbeat (
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (number)
);

CREATE TABLE inference_limits (
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    concurrency BIGINT,
    tokens_per_minute BIGINT,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE inference_meters (
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    debt FLOAT NOT NULL,
    settled_at BIGINT NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE inference_places (
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (id, kind)
);

CREATE INDEX inference_places_name ON inference_places (kind, name);

CREATE INDEX inference_places_owner ON inference_places (owner);

CREATE TABLE inference_usage (
    project TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    model TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    requests BIGINT NOT NULL,
    errors BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    reasoning_tokens BIGINT NOT NULL,
    first_tokens BIGINT NOT NULL,
    seconds FLOAT NOT NULL,
    first_token_seconds FLOAT NOT NULL,
    took_0 BIGINT NOT NULL,
    took_1 BIGINT NOT NULL,
    took_2 BIGINT NOT NULL,
    took_3 BIGINT NOT NULL,
    took_4 BIGINT NOT NULL,
    took_5 BIGINT NOT NULL,
    took_6 BIGINT NOT NULL,
    took_7 BIGINT NOT NULL,
    took_8 BIGINT NOT NULL,
    took_9 BIGINT NOT NULL,
    took_10 BIGINT NOT NULL,
    took_11 BIGINT NOT NULL,
    took_12 BIGINT NOT NULL,
    took_13 BIGINT NOT NULL,
    first_0 BIGINT NOT NULL,
    first_1 BIGINT NOT NULL,
    first_2 BIGINT NOT NULL,
    first_3 BIGINT NOT NULL,
    first_4 BIGINT NOT NULL,
    first_5 BIGINT NOT NULL,
    first_6 BIGINT NOT NULL,
    first_7 BIGINT NOT NULL,
    first_8 BIGINT NOT NULL,
    first_9 BIGINT NOT NULL,
    first_10 BIGINT NOT NULL,
    first_11 BIGINT NOT NULL,
    first_12 BIGINT NOT NULL,
    first_13 BIGINT NOT NULL,
    PRIMARY KEY (project, day, model, key, "user")
);

CREATE TABLE leases (
    name TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    lease_until BIGINT NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE monitor_waiting (
    project TEXT COLLATE "C" NOT NULL,
    monitor TEXT COLLATE "C" NOT NULL,
    group_key TEXT COLLATE "C" NOT NULL,
    call_id TEXT COLLATE "C" NOT NULL,
    due_at BIGINT NOT NULL,
    PRIMARY KEY (project, monitor, group_key)
);

CREATE INDEX monitor_waiting_due ON monitor_waiting (due_at);

CREATE TABLE object_aliases (
    number BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    object_id TEXT COLLATE "C" NOT NULL,
    alias TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT object_aliases_identity UNIQUE (project, object_id, alias)
);

CREATE TABLE object_tags (
    project TEXT COLLATE "C" NOT NULL,
    object_id TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    tag TEXT COLLATE "C" NOT NULL,
    "user" TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (project, object_id, digest, tag)
);

CREATE TABLE object_versions (
    number BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    object_id TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    ref TEXT COLLATE "C" NOT NULL,
    version_index BIGINT NOT NULL,
    is_latest BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    deleted_at BIGINT,
    base_object_class TEXT COLLATE "C",
    leaf_object_class TEXT COLLATE "C",
    "user" TEXT COLLATE "C",
    size BIGINT NOT NULL,
    val TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT object_versions_identity UNIQUE (project, object_id, digest)
);

CREATE INDEX object_versions_digest ON object_versions (project, digest);

CREATE INDEX object_versions_ref ON object_versions (project, ref);

CREATE INDEX object_versions_time ON object_versions (project, created_at);

CREATE TABLE projects (
    project TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    description TEXT COLLATE "C",
    retention_days BIGINT,
    PRIMARY KEY (project)
);

CREATE TABLE registry_links (
    project TEXT COLLATE "C" NOT NULL,
    portfolio TEXT COLLATE "C" NOT NULL,
    source_ref TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (project, portfolio, source_ref)
);

CREATE TABLE replay_items (
    replay_id TEXT COLLATE "C" NOT NULL,
    place BIGINT NOT NULL,
    call_id TEXT COLLATE "C" NOT NULL,
    outcome TEXT COLLATE "C",
    reason TEXT COLLATE "C",
    PRIMARY KEY (replay_id, place)
);

CREATE TABLE runtimes (
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    base_url TEXT COLLATE "C" NOT NULL,
    api_key_secret TEXT COLLATE "C",
    headers TEXT COLLATE "C" NOT NULL,
    max_tokens TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    updated_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE sessions (
    hash TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (hash)
);

CREATE INDEX ix_sessions_key ON sessions (key);

CREATE TABLE table_chunks (
    table_number BIGINT NOT NULL,
    chunk BIGINT NOT NULL,
    row_digests TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (table_number, chunk)
);

CREATE TABLE table_rows (
    number BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    val TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT table_rows_identity UNIQUE (project, digest)
);

CREATE TABLE tables (
    number BIGSERIAL NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    row_count BIGINT NOT NULL,
    is_complete BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT tables_identity UNIQUE (project, digest)
);

CREATE TABLE train_checkpoints (
    id TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    parent_step BIGINT,
    job_id TEXT COLLATE "C",
    folder TEXT COLLATE "C" NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    bytes BIGINT NOT NULL,
    metrics TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (folder),
    UNIQUE (model_id, step)
);

CREATE TABLE train_events (
    job_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    data TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (job_id, seq),
    UNIQUE (id)
);

CREATE TABLE train_jobs (
    number BIGSERIAL NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    config TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    step BIGINT,
    parent_step BIGINT,
    attempts BIGINT NOT NULL,
    progress BIGINT NOT NULL,
    lease_owner TEXT COLLATE "C",
    lease_until BIGINT,
    cancel_asked BIGINT NOT NULL,
    error TEXT COLLATE "C",
    metrics TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    started_at BIGINT,
    ended_at BIGINT,
    PRIMARY KEY (number),
    UNIQUE (id)
);

CREATE INDEX ix_train_jobs_model_id ON train_jobs (model_id);

CREATE INDEX ix_train_jobs_payload ON train_jobs (payload);

CREATE INDEX ix_train_jobs_state ON train_jobs (state);

CREATE TABLE train_logs (
    id TEXT COLLATE "C" NOT NULL,
    model_id TEXT COLLATE "C" NOT NULL,
    step BIGINT NOT NULL,
    split TEXT COLLATE "C" NOT NULL,
    metrics TEXT COLLATE "C" NOT NULL,
    payload TEXT COLLATE "C" NOT NULL,
    groups BIGINT NOT NULL,
    trajectories BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id)
);

CREATE INDEX ix_train_logs_model_id ON train_logs (model_id);

CREATE INDEX ix_train_logs_payload ON train_logs (payload);

CREATE TABLE train_models (
    id TEXT COLLATE "C" NOT NULL,
    entity TEXT COLLATE "C" NOT NULL,
    project TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    base_model TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C",
    lora TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (entity, project, name)
);
