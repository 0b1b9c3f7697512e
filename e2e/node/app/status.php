<?php
require __DIR__ . '/app.php';
header('Content-Type: application/json');
try {
    echo json_encode(status()), "\n";
} catch (Throwable $error) {
    http_response_code(503);
    error_log('status.php: ' . $error->getMessage());
}
